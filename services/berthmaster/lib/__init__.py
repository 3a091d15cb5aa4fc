"""What several services or commands need. No package here knows which service uses it."""
