"""One module per plugin: a pure function with a name, a description and bounds."""
