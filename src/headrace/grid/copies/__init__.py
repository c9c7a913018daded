"""Copies of data into the region of the lines that read them: shared, resumed, verified, whole or not there at all.

copy_failure       why a copy failed, as a type
copied_object      an object, a listing of many, what two can be compared by; the marker of a whole copy
object_copier      one object, as a whole or in parts, by S3 itself or through this machine
copy_workers       many objects at once, with an end on request
copy_action        a copy from its listing to its marker
grid_copy          a copy that a grid has planned, and the job that reads from it
"""
