"""The way between clusters: what an ingress relay sends to other clusters, and what a home relay takes from there."""
