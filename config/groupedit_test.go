package config

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// TestGroupText: requests for single objects change the text of a version, and nothing else in it.
func TestGroupText(t *testing.T) {
	const text = GroupText(`{"hosts":[{"dhchap_key":"sealed","limits":1,"nqn":"h"}],` +
		`"subsystems":[{"hosts":["h"],"namespaces":[{"nsid":1,"size":12345678901234567890}],` +
		`"nqn":"s","serial":"x"},{"nqn":"t"}]}`)
	host, ns := Managed{Subsystem: "s", Host: "i"}, Managed{Subsystem: "s", NSID: 2}
	sub, of := Managed{Subsystem: "s"}, Managed{Host: "h"}
	ns1, in := Managed{Subsystem: "s", NSID: 1}, Managed{Subsystem: "s", Host: "h"}
	const namespaces = `"namespaces":[{"nsid":1,"size":12345678901234567890}]`
	for _, tc := range []struct {
		m             Managed
		body          string // "": it is deleted
		before, after string // in the text
	}{
		{host, "{}", `["h"]`, `["h","i"]`},
		{in, "{}", "", ""},
		{host, "", "", ""},
		{in, "", `["h"]`, `[]`},
		{Managed{Subsystem: "t", Host: "i"}, "{}", `{"nqn":"t"}`, `{"hosts":["i"],"nqn":"t"}`},
		{Managed{Subsystem: "t", Host: "i"}, "", "", ""},
		{ns, `{"image":"p/${A}"}`, namespaces, namespaces[:len(namespaces)-1] +
			`,{"image":"p/${A}","nsid":2}]`},
		{ns1, `{"nsid":1,"size":5}`, `12345678901234567890`, `5`},
		{ns1, "", namespaces, `"namespaces":[]`},
		{sub, `{"serial":"y"}`, `"serial":"x"`, `"serial":"y"`},
		{sub, `{}`, `,"serial":"x"`, ``},
		{Managed{Subsystem: "t"}, "", `,{"nqn":"t"}`, ""},
		{of, `{"limits":2}`, `"limits":1`, `"limits":2`},
		{of, `{"limits":1,"dhchap_key":"k"}`, `sealed`, `k`},
		{of, `{"limits":1,"dhchap_key_file":"/k"}`, `dhchap_key":"sealed`, `dhchap_key_file":"/k`},
		{of, "", `{"dhchap_key":"sealed","limits":1,"nqn":"h"}`, ""},
	} {
		want := text
		if tc.before != "" {
			want = GroupText(strings.Replace(string(text), tc.before, tc.after, 1))
			testutil.True(t, want != text, "%s is not in the text", tc.before)
		}
		got, err := text.Delete(tc.m, false)
		if tc.body != "" {
			got, err = text.Put(tc.m, []byte(tc.body))
		}
		testutil.Check(t, err)
		testutil.Equal(t, got, want, "%+v %s", tc.m, tc.body)
	}
	key, in2 := Managed{Host: "h", Key: "k"}, Managed{Subsystem: "t", NSID: 1}
	const broken = GroupText(`{"subsystems":[{"nqn":"s","namespaces":1},"t"],"hosts":"h"}`)
	gone := testutil.Value(text.Delete(sub, true))(t)
	testutil.Equal(t, gone, GroupText(`{"hosts":[{"dhchap_key":"sealed","limits":1,"nqn":"h"}],`+
		`"subsystems":[{"nqn":"t"}]}`), "")
	testutil.Equal(t, testutil.Value(gone.Delete(host, false))(t), gone, "in no subsystem")
	for want, err := range map[string]error{
		"the subsystem has namespaces":  testutil.Err(text.Delete(sub, false)),
		"the subsystem was removed":     testutil.Err(gone.Put(host, nil)),
		"requests do not change it":     testutil.Err(text.Delete(key, false)),
		"nsid: 3 here, but 2":           testutil.Err(text.Put(ns, []byte(`{"nsid":3}`))),
		"hosts: is not part":            testutil.Err(text.Put(sub, []byte(`{"hosts":[]}`))),
		"not valid JSON":                testutil.Err(text.Put(ns, []byte(`{`))),
		"cannot name a file to read":    testutil.Err(text.Put(ns, []byte(`{"x_file":"/k"}`))),
		"namespaces is not a list":      testutil.Err(broken.Put(ns, nil)),
		"hosts is not a list":           testutil.Err(broken.Put(of, nil)),
		"unexpected EOF":                testutil.Err(GroupText(`{`).Put(of, nil)),
		"the subsystem was removed mea": testutil.Err(broken.Put(in2, nil)),
	} {
		testutil.Fails(t, err, want, "")
	}
	testutil.Equal(t, testutil.Value(GroupText("{}").Put(of, nil))(t), `{"hosts":[{"nqn":"h"}]}`, "")
}

// TestFreeNSID: a namespace that is created again keeps its NSID.
func TestFreeNSID(t *testing.T) {
	const text = GroupText(`{"subsystems":[{"nqn":"t","namespaces":[{"nsid":3}]},{"nqn":"s",` +
		`"namespaces":[{"nsid":1},{"nsid":2,"uuid":"6BA7B810-9dad-11d1-80b4-00c04fd430c8"}]}]}`)
	id := uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	testutil.Equal(t, text.FreeNSID("s", id), 2, "the same UUID")
	testutil.Equal(t, text.FreeNSID("s", uuid.New()), 3, "a new one")
	testutil.Equal(t, text.FreeNSID("u", id), 1, "in another subsystem")
}
