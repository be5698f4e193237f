# The demo of ../../demo.sh on Debian's kernel.
# variants: rxe
# cpus: 2
# limit: 600
. "$LAB_DIR/demo-inside.sh"
