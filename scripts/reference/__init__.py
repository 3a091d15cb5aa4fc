"""The generated pages of the documentation: what code declares, as pages for users."""
