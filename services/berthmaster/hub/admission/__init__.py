"""The admission check controller: Placement to MultiKueueConfig, and Workloads let through.

The successor of Open Cluster Management's kueue-addon. It says which clusters are members; where
among them each Workload goes is the dispatcher's to say.
"""
