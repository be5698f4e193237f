package sys

import (
	"os"
	"os/signal"
	"syscall"
)

// Serve is the argument that makes the program a target.
const Serve = "serve"

// A SIGHUP has a target read its configuration again. By default it ends the process, so a target
// ignores it from its first moments on, also while DropPrivileges executes the program anew, until
// it is about to read its configuration and catches it. One that is ignored is not missed: what it
// asks for is still to be done.
func init() {
	if len(os.Args) > 1 && os.Args[1] == Serve {
		signal.Ignore(syscall.SIGHUP)
	}
}
