"""What is wrong with a request: said alike by the gateway, which takes it, and by the resolver,
which only tries it."""
