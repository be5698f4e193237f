package app

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
)

// Check reads a configuration file and reports everything that is wrong with it, on this machine
// too: files, directories and CPUs that are not there. It changes nothing. A nil error means that
// "serve" can use the file.
func Check(file string, environ []string, out io.Writer) error {
	c, err := config.Load(file, environ, backends)
	if err != nil {
		return err
	}
	if ps := probe(c); len(ps) > 0 {
		return ps
	}
	namespaces := 0
	for _, s := range c.Subsystems {
		namespaces += len(s.Namespaces)
	}
	_, err = fmt.Fprintf(out, "%s: valid: %s, %s, %s\n", file, count(len(c.Listeners), "listener"),
		count(len(c.Subsystems), "subsystem"), count(namespaces, "namespace"))
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// probe looks at what the configuration names on this machine.
func probe(c *config.Config) config.Problems {
	var ps config.Problems
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for i, cpu := range c.Reactors.CPUs {
			if !set.IsSet(cpu) {
				ps = append(ps, c.Problem(fmt.Sprintf("reactors.cpus[%d]", i),
					fmt.Sprintf("CPU %d does not exist or this process may not use it", cpu),
					"Choose among those that \"taskset -cp $$\" prints."))
			}
		}
	}
	type user struct {
		info os.FileInfo
		path string
	}
	var files []user
	for i, s := range c.Subsystems {
		for j, n := range s.Namespaces {
			paths, layers := n.Layers(fmt.Sprintf("subsystems[%d].namespaces[%d]", i, j))
			at, last := paths[len(paths)-1], layers[len(layers)-1].Options.(storage)
			path := last.path()
			for _, p := range last.probe(env{readOnly: n.ReadOnly}).Errors {
				ps = append(ps, c.Problem(at+".path", fmt.Sprintf("%q %s", path, p.What), p.Hint))
			}
			info, err := os.Stat(blockPath(layers[len(layers)-1]))
			if path == "" || err != nil {
				continue
			}
			for _, f := range files {
				if os.SameFile(info, f.info) {
					ps = append(ps, c.Problem(at+".path", "is the same file as that of "+f.path,
						"Give each namespace its own."))
				}
			}
			files = append(files, user{info, at})
		}
	}
	return ps
}

var _ = errors.New
