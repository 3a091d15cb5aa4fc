"""The kinds of job objects that an attempt can be, a file each; table.py lists them."""
