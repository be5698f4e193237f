# What bench-inside.sh measures, on Debian's kernel and two CPUs: ../../bench.sh makes a table of it.
# variants: rxe
# cpus: 2
# limit: 3600
. "$LAB_DIR/bench-inside.sh"
