"""The data path's sockets: listeners, links, configuration, admin HTTP and metrics."""
