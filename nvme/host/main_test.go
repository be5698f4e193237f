package host

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	before := openFDs()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println("goroutine leak:", err)
			code = 1
		}
		if after := openFDs(); after > before+3 { // the runtime's own poller
			fmt.Printf("file descriptor leak: %d before, %d after\n", before, after)
			code = 1
		}
	}
	os.Exit(code)
}

func openFDs() int {
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(e)
}
