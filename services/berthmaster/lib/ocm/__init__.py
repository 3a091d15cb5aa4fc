"""What services share that keep objects of Open Cluster Management's clusters as they should be.

May live here: how often such an object is written, whose it is, and what a cluster's score says.
Must not: which objects there are, or what is in them.
"""
