"""Commands about jobs, and their screens: submit, list, explain, wait, cancel, hold, move."""
