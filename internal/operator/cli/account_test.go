package cli

import (
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func TestNamesOfServiceAccounts(t *testing.T) {
	account := &adminv1.SecretRef{Uid: "u", Namespace: "team-a", Name: ServiceAccountPrefix + "builder"}
	regcred := &adminv1.SecretRef{Uid: "u", Namespace: "team-a", Name: "regcred"}
	namespace := &adminv1.SecretRef{Namespace: "team-a"}
	testkit.Equal(t, "names", secretNames([]*adminv1.SecretRef{account, regcred, namespace}),
		"service account team-a/builder, team-a/regcred, runtime for namespace team-a")
	right := &adminv1.ImageRight{Right: "proof", By: "0123456789abcdef", Secrets: []*adminv1.SecretRef{account}}
	testkit.Equal(t, "right", (&Page{}).rightRow(right, "every pod")[1], "service account team-a/builder")
	for _, tc := range []struct {
		of              *adminv1.SecretRef
		secret, account string // what completes the flags
	}{{account, "", "team-a/builder"}, {regcred, "team-a/regcred", ""}, {namespace, "", ""}} {
		testkit.Equal(t, "--secret", secretCoordinates(tc.of), tc.secret)
		testkit.Equal(t, "--service-account", accountCoordinates(tc.of), tc.account)
	}
}
