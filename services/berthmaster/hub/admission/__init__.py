"""The admission check controller: OCM Placements become MultiKueueConfigs and MultiKueueClusters.

It succeeds the kueue-addon of Open Cluster Management. It says which clusters are members. The
dispatcher chooses one of them for each Workload.
"""
