package check

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestLookupTime: a directory service that does not answer does not delay anything forever, and is
// not asked again in the same time.
func TestLookupTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), lookupTime, errLookup)
		defer cancel()
		asked, answer := 0, make(chan int)
		find := func() (int, error) {
			asked++
			return <-answer, nil
		}
		for range 3 {
			testutil.Is(t, testutil.Err(within(ctx, find)), errLookup, "")
		}
		answer <- 1
		synctest.Wait()
		testutil.True(t, asked == 1, "asked %d times", asked)
		id, err := within(t.Context(), func() (int, error) { return 2, nil })
		testutil.True(t, id == 2 && err == nil, "%v %v", id, err)
	})
}

// TestUnknownNames: names that the machine does not have cause warnings.
func TestUnknownNames(t *testing.T) {
	c := testutil.Value(parse("test.yaml", validFile+"control: {roles: [{user: root, role: read}, "+
		"{user: '7', role: operate}, {group: no such group, role: admin}, "+
		"{group: '8', role: admin}]}"))(t)
	r, ps := Roles(c)
	testutil.True(t, len(r.Users) == 2 && r.Users[0].String() == "read" &&
		r.Users[7].String() == "operate" && len(r.Groups) == 1 && r.Groups[8].String() == "admin",
		"%+v", r)
	testutil.True(t, len(ps) == 1 && strings.Contains(ps[0].Error(),
		"control.roles[2]: there is no group ") && !ps.Failed(), "%v", ps)
}
