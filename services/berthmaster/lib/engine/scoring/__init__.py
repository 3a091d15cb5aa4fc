"""Scores of nodes and clusters for a kind of pod, and the resulting order."""
