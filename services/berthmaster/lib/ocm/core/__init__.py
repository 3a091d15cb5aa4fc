"""The decisions of the service, pure: the time is passed in, instructions come out."""
