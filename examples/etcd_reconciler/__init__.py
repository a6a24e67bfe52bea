"""A small control plane on a real etcd, through an outage: naive loops beside an abate controller."""
