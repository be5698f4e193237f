# The measurements of bench-inside.sh on Debian's kernel and two CPUs, for ../../bench.sh.
# variants: rxe
# cpus: 2
# limit: 3600
. "$LAB_DIR/bench-inside.sh"
