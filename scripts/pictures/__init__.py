"""Makes the pictures of the documentation from what really runs."""
