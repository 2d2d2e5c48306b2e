package node

import (
	"encoding/base64"
	"strings"
	"testing"
)

func TestFormsOfASecretAreFound(t *testing.T) {
	const secret = "canary-5f2d-of-team-a"
	for _, before := range []string{"", "u", "us", "user:"} {
		for _, after := range []string{"", "x", "\n\n"} {
			text, found := base64.StdEncoding.EncodeToString([]byte(before+secret+after)), false
			for _, needle := range forms(secret) {
				found = found || strings.Contains(text, needle)
			}
			if !found {
				t.Errorf("%q, the base64 of %q, is not recognised", text, before+secret+after)
			}
		}
	}
}
