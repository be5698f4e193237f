package sys

import (
	"os"
	"os/signal"
	"syscall"
)

// Serve is the argument that makes the program a target.
const Serve = "serve"

// SIGHUP makes a target read its configuration again. By default it ends the process. So a target
// ignores it from the start, even while DropPrivileges executes the program again, until it is
// about to read its configuration and catches the signal. An ignored signal is not lost, because
// the configuration is still to be read.
func init() {
	if len(os.Args) > 1 && os.Args[1] == Serve {
		signal.Ignore(syscall.SIGHUP)
	}
}
