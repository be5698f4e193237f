package app

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// warnings are what check warns of, and an error if it finds one.
func warnings(t *testing.T, text string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := Check(writeConfig(t, text), nil, &out)
	return out.String(), err
}

// TestCheckWarns: what can be used although it looks doubtful is a warning, and the number of
// warnings is in the last line.
func TestCheckWarns(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"reactors", strings.Replace(validFile, "count: 1", "count: 256", 1), "256 reactors share "},
		{"memory", strings.Replace(validFile, "16MiB", "4000TiB", 1), "may take 4000TiB, and "},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := warnings(t, test.text)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) < 2 || !strings.Contains(out, ": warning: ") ||
				!strings.Contains(out, test.want) ||
				!strings.HasSuffix(lines[len(lines)-1], ", with "+count(len(lines)-1, "warning")) {
				t.Errorf("printed:\n%s\nwant %q", out, test.want)
			}
		})
	}
}

// TestTheSameStorageTwice: a file and a loop device on it are one storage.
func TestTheSameStorageTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", loop).Run() })
	_, err = warnings(t, strings.Replace(validFile, "{nsid: 1, backend: ram, size: 16MiB}",
		"{nsid: 1, backend: file, path: "+file+"}, {nsid: 2, backend: block, path: "+loop+"}", 1))
	if err == nil || !strings.Contains(err.Error(), "namespace 2 of "+testNQN+
		" is on the same storage as namespace 1 of "+testNQN) {
		t.Errorf("got %v", err)
	}
}

// TestFewDescriptors: with fewer of them than connections the target warns when it starts, and says
// what to do when a connection cannot be accepted.
func TestFewDescriptors(t *testing.T) {
	child := exec.Command("sh", "-c", "ulimit -n 64; exec \"$0\"", os.Args[0])
	child.Env = append(os.Environ(), serveFile+"="+writeConfig(t, validFile))
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := child.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(testTimeout, func() { _ = child.Process.Kill() })
	defer kill.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the target does not start: %v", err)
	}
	_, addr, _ := strings.Cut(strings.TrimSpace(line), " on tcp ")
	for range 80 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	log, warned := bufio.NewScanner(stderr), false
	for log.Scan() && !strings.Contains(log.Text(), "too many open files (raise LimitNOFILE=") {
		warned = warned || strings.Contains(log.Text(), "open files, and the limit is 64. Set LimitNOFILE=")
	}
	if log.Text() == "" || !warned {
		t.Errorf("warned at the start: %v; the last line: %q", warned, log.Text())
	}
	_ = child.Process.Signal(syscall.SIGTERM)
	_, _ = io.Copy(io.Discard, stderr)
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
