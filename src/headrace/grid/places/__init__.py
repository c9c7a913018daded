"""The places that a grid reads, and those that it copies to: whether they are there, and how much they hold.

place_clients    clients of S3, one for each way in which a region is reached
measure_places   how much data of unknown size are
check_places     whether everything is there before anything starts
"""
