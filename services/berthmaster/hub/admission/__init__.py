"""The admission check controller: OCM Placements become MultiKueueConfigs and MultiKueueClusters.

The service replaces the kueue-addon of Open Cluster Management. The service sets the member
clusters. The dispatcher chooses one of them for each Workload.
"""
