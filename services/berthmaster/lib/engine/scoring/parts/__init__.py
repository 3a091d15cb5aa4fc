"""What may count for or against a cluster: one small module a part, each 0..100, more is better.

Rules of this folder: a part is a pure function of arrays over the clusters of one moment. What is
not known of a cluster is UNKNOWN, in and out: it counts as the worst whatever the part's weight is,
so that silence never makes a cluster look better, not even to who wants little of something. A
value that cannot be (not finite, below nothing) is as good as none.
"""
