"""What people do with an encoder: text in, typed result out.

Each task needs torch and is named by its own module; what is listed here is free of it.
"""

from unmask.tasks.progress import Progress

__all__ = ["Progress"]
