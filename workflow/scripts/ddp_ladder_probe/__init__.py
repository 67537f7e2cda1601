"""The preflight's ranks: torch and the standard library only, Python 3.9 or newer, torch 2.4 or newer.

probe        one rank from start to end, and its file, which shows where a rank hangs
matrix_rate  products of large matrices in each precision
collectives  all-reduces: values, times, pairs of nodes
pairs        which pairs of nodes are measured, in which order: without torch
"""
