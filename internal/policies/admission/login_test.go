package admission_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

func TestLoginsAreNotPrinted(t *testing.T) {
	const canary = "canary"
	c := admission.Login{Username: canary, Password: canary, IdentityToken: canary, RegistryToken: canary}
	type outer struct{ Credential admission.Login }
	var b bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T"} {
		for _, value := range []any{c, &c, outer{c}, []admission.Login{c}} {
			fmt.Fprintf(&b, verb, value)
		}
	}
	r := outer{c}
	// fmt calls no method for the value of a pointer with a wrong verb
	fmt.Fprintf(&b, "%v%+v%#v", []any{r, &r}, []any{r, &r}, []any{r, &r})
	if err := json.NewEncoder(&b).Encode([]any{c, r}); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "credential", c, "outer", r)
	if out := b.String(); strings.Contains(out, canary) || strings.Contains(out, fmt.Sprintf("%x", canary)) || !strings.Contains(out, "[redacted]") {
		t.Errorf("printed: %s; want no credential", out)
	}
	if got := c.MarshalLog(); got != "[redacted]" {
		t.Errorf("MarshalLog = %v", got)
	}
}
