"""The `logstore` command: one verb a file, options and printing only; the work lives in lower rooms.

main        dispatch, exit codes, one-line errors
demo        kill leaders in the middle of real input and account for every record
dump        what is in the files of a log directory, anybody's, without ever writing
recover     load a partition as after a power cut, or say what that would do
append, cat lines in, lines out
"""
