"""What the cluster tier has beside the control plane of berthmaster/lab/controlplane."""
