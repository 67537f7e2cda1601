"""The parts of gpu_day.py, and the modules that run them one after the other.

day, page, parts, checklist    run in the Python that starts the day: the standard library and psutil
all others                     each runs in its own process, started by ../gpu_day_part.py
"""
