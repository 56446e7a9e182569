from workers_site import site

__all__ = ["site"]
