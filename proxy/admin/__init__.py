"""What people and Prometheus ask a sidecar: health, metrics, status, and the throttle over HTTP.

Reads the plain integers that the data path counts; changes nothing but the throttle.
"""
