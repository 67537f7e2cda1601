"""The preflight's ranks: torch and the standard library only, Python 3.9 or newer, torch 2.4 or newer.

probe        one rank from start to end: its steps in order
collectives  all-reduces: values, times, pairs of nodes
identity     what this rank is, and whether the others belong to the same job
device       the rank's device, and a matrix product on it
rank_file    ranks/rank<k>.json, written after every step, so that a rank that hangs is seen where it hangs
"""
