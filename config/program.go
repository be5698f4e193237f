package config

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/sys"
)

const (
	// commandSuffix makes the name of the key that names a program which prints the value.
	commandSuffix = "_command"
	// programsTime is how long all programs of a configuration may take.
	programsTime = 30 * time.Second
	// maxStderr is how many bytes of a program's standard error an error message repeats. Secrets
	// are looked for in the first maxComplaint bytes, so that none is cut in two and missed.
	maxStderr    = 256
	maxComplaint = 16 << 10
)

// Option changes how Load reads a configuration: an Edit, or what Printed and Within return.
type Option interface{ apply(*decoder) }

type option func(*decoder)

func (o option) apply(d *decoder) { o(d) }

// Printed is an option that takes what programs have printed for c instead of running them.
func (c *Config) Printed() Option { return option(func(d *decoder) { d.known = c.printed }) }

// Within is an option that ends programs with ctx.
func Within(ctx context.Context) Option { return option(func(d *decoder) { d.ctx = ctx }) }

// fromProgram returns what the program prints that n names with its arguments, less the end of its
// last line, in place of n. What is wrong is reported at path.
func (d *decoder) fromProgram(n *yaml.Node, path string) *yaml.Node {
	d.places[path] = d.placeOf(n)
	args, what, hint := d.arguments(n)
	if what == "" {
		value, err := d.output(args)
		if err == nil {
			return d.literal(n, value)
		}
		what = shown(args[0]) + " " + err.Error()
		hint = "Run it by hand, as the user of the target."
	}
	d.add(path, what, hint)
	return d.literal(n, "")
}

// arguments are the program that n names and its arguments.
func (d *decoder) arguments(n *yaml.Node) (args []string, what, hint string) {
	// Who can write there is not to run programs as the user who checks the configuration.
	if rel, err := filepath.Rel(d.managed, d.fileOf(n)); d.managed != "" && err == nil &&
		filepath.IsLocal(rel) {
		return nil, "files of the managed directory cannot name a program",
			"Name it in the configuration file."
	}
	list := resolved(n)
	for _, a := range list.Content {
		var text string
		if text, what, hint = d.expand(resolved(a)); what != "" {
			return nil, what, hint
		}
		args = append(args, text)
	}
	if list.Kind != yaml.SequenceNode || len(args) == 0 || !filepath.IsAbs(args[0]) {
		return nil, "must be a list of the path of a program and its arguments",
			"Write for instance [/usr/local/bin/key, host1]; the path begins with /."
	}
	return args, "", ""
}

// output is what a program prints.
func (d *decoder) output(args []string) (string, error) {
	id := fmt.Sprintf("%q", args)
	if d.printed == nil {
		d.printed, d.patience = map[string]string{}, time.Now().Add(d.programsTime)
	}
	value, ok := d.printed[id]
	if !ok {
		value, ok = d.known[id]
	}
	if ok {
		d.printed[id] = value
		return value, nil
	}
	ctx, cancel := context.WithDeadline(d.ctx, d.patience)
	defer cancel()
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if dir, ok := d.environ["CREDENTIALS_DIRECTORY"]; ok {
		env = append(env, "CREDENTIALS_DIRECTORY="+dir)
	}
	value, err := runProgram(ctx, args, env)
	if err == nil {
		d.printed[id] = value
	}
	return value, err
}

// runProgram runs a program without privileges and returns its standard output. When it returns,
// the program and its children have ended, unless a child has left the session. The error contains
// nothing of the standard output. It repeats the standard error with possible secrets masked.
func runProgram(ctx context.Context, args, env []string) (string, error) {
	out, complaint := limited{most: maxValueFile}, limited{most: maxComplaint, drop: true}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", env, &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, time.Second // for what holds the pipe
	var err error
	_ = sys.CloseOnExec() // before Linux 5.11 what this process was started with is inherited
	if failed := sys.WithoutPrivileges(func() { err = cmd.Start() }); failed != nil || err != nil {
		return "", errors.Join(failed, err)
	}
	err = cmd.Wait()
	_ = kill()
	switch {
	case out.full:
		return "", fmt.Errorf("prints more than %v", Size(maxValueFile))
	case errors.Is(ctx.Err(), context.Canceled):
		return "", errors.New("was ended, because the target stops")
	case ctx.Err() != nil:
		return "", errors.New("was ended, because all programs took too long together")
	case err != nil && len(complaint.text) > 0:
		text := secret.MaskAll(string(complaint.text), string(out.text), complaint.full)
		text = strconv.Quote(text[:min(len(text), maxStderr)])
		return "", fmt.Errorf("failed: %w: %s", err, text)
	case err != nil:
		return "", fmt.Errorf("failed: %w", err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(out.text), "\n"), "\r"), nil
}

// limited keeps the beginning of what is written. The rest is dropped, or an error, which ends the
// program.
type limited struct {
	text       []byte
	most       int
	drop, full bool
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	room := l.most - len(l.text)
	if len(b) <= room {
		l.text = append(l.text, b...)
		return len(b), nil
	}
	l.text = append(l.text, b[:room]...)
	if l.full = true; l.drop {
		return len(b), nil
	}
	return room, errors.New("too much")
}
