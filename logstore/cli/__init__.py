"""The `logstore` command: one verb per file, options and output only; the work is in lower rooms.

main           dispatch, exit codes, one-line errors; pipeline and simulate, which parse their own options
operating      options and helpers of the operators' verbs: topics, reassign, elect
demo, drill    kill leaders during real input and account for every record
dump           show the files of any log directory, without writing
recover        load a partition as after a power cut, or show what that would do
append, cat    lines in, lines out
"""
