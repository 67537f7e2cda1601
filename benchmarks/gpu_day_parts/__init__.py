"""The parts of gpu_day.py, and what runs them one after the other.

day, page, parts    run in the Python that starts the day: the standard library and psutil
the rest            each in a process of its own, started by ../gpu_day_part.py
"""
