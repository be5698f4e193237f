package cephtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// shell is a running ceph that reads commands. ceph is in Python: each start takes a third of a
// second of processor time.
type shell struct {
	*daemon
	in   io.Writer
	out  *bufio.Scanner
	errs *os.File // has the errors of a command as soon as its output has ended
}

// Ceph lets the program ceph carry out a command, and returns its output. It also writes it to FILE
// if the arguments end with -o FILE. If a command hangs, as it does now and then after ceph has
// changed the cluster, another ceph carries it out again, which changes nothing.
func (c *Cluster) Ceph(tb testing.TB, args ...string) string {
	tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	file := ""
	if n := len(args); n > 2 && args[n-2] == "-o" {
		args, file = args[:n-2], args[n-1]
	}
	out, err := c.ask(testutil.Patience/4, args)
	if errors.Is(err, context.DeadlineExceeded) {
		out, err = c.ask(testutil.Patience, args)
	}
	testutil.Must(tb, err)
	if file != "" {
		testutil.Must(tb, os.WriteFile(file, []byte(out), 0o600))
	}
	return out
}

// ask lets the shell carry out a command. The output of fsid ends that of the command.
func (c *Cluster) ask(limit time.Duration, args []string) (string, error) {
	ctx, cancel := c.context(limit)
	defer cancel()
	if c.shell == nil {
		if err := c.startShell(); err != nil {
			return "", err
		}
	}
	s := c.shell
	defer context.AfterFunc(ctx, func() { _ = s.Process.Kill() })()
	_, _ = fmt.Fprintf(s.in, "'%s'\nfsid\n", strings.Join(args, "' '"))
	var out strings.Builder
	for s.out.Scan() && s.out.Text() != c.id {
		if s.out.Text() != "" {
			out.WriteString(s.out.Text() + "\n")
		}
	}
	ended := s.out.Text() != c.id
	errs, err := io.ReadAll(s.errs)
	if ended || strings.Contains(string(errs), "Error ") {
		c.endShell()
		err = errors.Join(errors.New("it has failed"), ctx.Err())
	}
	if err != nil {
		err = fmt.Errorf("ceph %s: %w\n%s%s%s", strings.Join(args, " "), err, &out, errs, c.logs())
	}
	return out.String(), err
}

func (c *Cluster) startShell() error {
	cmd := exec.Command("ceph", "-c", c.Conf())
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1")
	file, err := os.CreateTemp(c.dir, "errors")
	if err != nil {
		return err
	}
	cmd.Stderr = file
	errs, err := os.Open(file.Name())
	in, err2 := cmd.StdinPipe()
	out, err3 := cmd.StdoutPipe()
	ended, err4 := testutil.StartChild(cmd)
	err = errors.Join(err, err2, err3, err4, file.Close())
	c.shell = &shell{&daemon{cmd, ended}, in, bufio.NewScanner(out), errs}
	return err
}

// endShell ends the shell.
func (c *Cluster) endShell() {
	if c.shell != nil {
		_ = c.shell.Process.Kill()
		<-c.shell.ended
		_ = c.shell.errs.Close()
		c.shell = nil
	}
}
