package sys

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// dropped makes the test binary a process that drops its privileges, see TestDropPrivileges. A
// value other than 1 names a file that it removes first.
const dropped = "NVMF_TEST_DROP_PRIVILEGES"

func TestMain(m *testing.M) {
	if os.Getenv(dropped) == "" {
		os.Exit(m.Run())
	}
	if file := os.Getenv(dropped); file != "1" {
		_ = os.Remove(file)
	}
	var wg sync.WaitGroup
	for range 8 { // threads kept by the Go runtime
		wg.Go(func() { _, _ = os.ReadFile("/proc/self/status") })
	}
	wg.Wait()
	if err := DropPrivileges(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("process", os.Getpid())
	before, _ := os.ReadFile("/proc/self/status")
	printStatus()
	// Programs that it executes have no more, even with user ID 0.
	out, err := exec.Command("cat", "/proc/self/status").CombinedOutput()
	fmt.Printf("%s%v\n", out, err)
	err = WithoutPrivileges(func() {
		out, err := exec.Command("sed", "s/^/child:/", "/proc/self/status").CombinedOutput()
		fmt.Printf("%s%v\n", out, err)
	})
	fmt.Println(err)
	for range 100 { // goroutines, some of them on the main thread
		_ = WithoutPrivileges(func() {})
	}
	after, _ := os.ReadFile("/proc/self/status")
	caps := regexp.MustCompile(`Cap.*`)
	fmt.Println("main thread:", slices.EqualFunc(caps.FindAll(before, -1), caps.FindAll(after, -1),
		bytes.Equal))
	printStatus()
	os.Exit(0)
}

func printStatus() {
	files, _ := filepath.Glob("/proc/self/task/*/status")
	for _, name := range files {
		text, _ := os.ReadFile(name)
		fmt.Printf("%s\n", text)
	}
}

// TestDropPrivileges reads the status of every thread, and of executed processes.
func TestDropPrivileges(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.v")
	child.Env = append(os.Environ(), dropped+"=1")
	var b bytes.Buffer
	child.Stdout, child.Stderr = &b, &b
	err := child.Run()
	testutil.MustTrue(t, err == nil, "%v %v", err, b.String())
	testutil.True(t, strings.Contains(b.String(), fmt.Sprintf("process %d\n", child.Process.Pid)),
		"it has become another process")
	testutil.True(t, strings.Contains(b.String(), "main thread: true"),
		"the main thread has lost what it had")
	line := regexp.MustCompile(`(?m)^(child:)?(NoNewPrivs|Cap...):\s*([0-9a-f]+)$`)
	allowed := uint64(needed[0]) | uint64(needed[1])<<32
	threads := 0
	for _, m := range line.FindAllStringSubmatch(b.String(), -1) {
		v, _ := strconv.ParseUint(m[3], 16, 64)
		switch {
		case m[2] == "NoNewPrivs":
			threads++
			testutil.True(t, v == 1, "%v", m[0])
		case m[2] == "CapBnd":
		case v&^allowed != 0, m[1] != "" && v != 0:
			t.Error(m[0])
		}
	}
	testutil.True(t, threads >= 6, "only %d threads and processes:\n%s", threads, b.String())
	if os.Geteuid() == 0 && !strings.Contains(b.String(), fmt.Sprintf("CapEff:\t%016x", allowed)) {
		t.Log("this process did not have all of them")
	}
}

// TestDropPrivilegesWithoutPath: the program cannot be executed by its path, as if another user has
// started it from a directory that is closed to this user.
func TestDropPrivilegesWithoutPath(t *testing.T) {
	text := testutil.Value(os.ReadFile(os.Args[0]))(t)
	file := filepath.Join(t.TempDir(), "program")
	testutil.Must(t, os.WriteFile(file, text, 0o700))
	child := exec.Command(file)
	child.Env = append(os.Environ(), dropped+"="+file)
	out, err := child.CombinedOutput()
	same := fmt.Sprintf("process %d\n", child.Process.Pid)
	testutil.True(t, err == nil && strings.Contains(string(out), same), "%v: %s", err, out)
}
