"""Clears nominations on hubs whose Kubernetes has no MutatingAdmissionPolicy (before 1.36).

Kueue writes only its own fields of a Workload. Once a cluster is chosen or an eviction begins, the
API server must clear the nomination of another writer, or it refuses Kueue's write.
"""
