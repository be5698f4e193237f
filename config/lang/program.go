package lang

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
	// commandSuffix makes the name of the key for a program that prints the value of a key.
	commandSuffix = "_command"
	// programsTime bounds the time of all programs of a configuration together.
	programsTime = 30 * time.Second
	// maxStderr is the number of bytes of standard error that an error message repeats. Secrets are
	// masked in the first maxComplaint bytes, so that none is cut in two and missed.
	maxStderr    = 256
	maxComplaint = 16 << 10
)

// Option changes how a Decoder reads files and programs, such as an Edit.
type Option interface{ apply(*Decoder) }

type option func(*Decoder)

func (o option) apply(d *Decoder) { o(d) }

// Printed is an option that reuses the output of the programs that ran for another decoder.
func (d *Decoder) Printed() Option {
	printed := d.printed
	return option(func(d *Decoder) { d.known = printed })
}

// Within is an option that ends programs when ctx is done.
func Within(ctx context.Context) Option { return option(func(d *Decoder) { d.ctx = ctx }) }

// fromProgram runs the command in n and returns its output, less the last newline, in place of n.
func (d *Decoder) fromProgram(n *yaml.Node, path string) *yaml.Node {
	d.places[path] = d.placeOf(n)
	args, what, hint := d.arguments(n)
	if what == "" {
		value, err := d.output(args)
		if err == nil {
			return d.literal(n, value)
		}
		what = Quoted(args[0]) + " " + err.Error()
		hint = "Run it by hand, as the user of the target."
	}
	d.Add(path, what, hint)
	return d.literal(n, "")
}

// arguments returns the program that n names and its arguments.
func (d *Decoder) arguments(n *yaml.Node) (args []string, what, hint string) {
	// Such users must not run programs with the rights of the user that checks the configuration.
	if rel, err := filepath.Rel(d.directory, d.fileOf(n)); d.directory != "" && err == nil &&
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

// output runs a program, or returns its output from an earlier run.
func (d *Decoder) output(args []string) (string, error) {
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
// the program and its children have ended, except a child that has left the session. The error
// contains no standard output. It repeats standard error with possible secrets masked.
func runProgram(ctx context.Context, args, env []string) (string, error) {
	out, complaint := limited{most: maxValueFile}, limited{most: maxComplaint, drop: true}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", env, &out, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, time.Second // for children that hold the pipe
	var err error
	_ = sys.CloseOnExec() // before Linux 5.11 inherited descriptors stay open
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

// limited keeps the first bytes written to it. It drops the rest, or fails, which ends the program.
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
