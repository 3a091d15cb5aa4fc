"""Which nodes and GPUs of a cluster the pods of a request get."""
