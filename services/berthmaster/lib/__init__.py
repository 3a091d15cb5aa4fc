"""Packages that several services or commands share. No package knows which service uses it."""
