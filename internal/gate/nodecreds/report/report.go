package report

import (
	"fmt"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

// A Report contains the credentials that one credential provider gave to the node. A Report without credentials need
// not be sent.
type Report struct {
	// KeyFingerprint is the fingerprint of the key for the IDs.
	KeyFingerprint string
	// Expires is when the kubelet no longer uses the answer.
	Expires     time.Time
	Credentials []Credential
}

// A Credential is the ID of a credential, with the patterns of its images.
type Credential struct {
	ID     credential.ID
	Images []string
}

// An Exchange is the request of a kubelet to a credential provider, and the answer, as they were sent.
type Exchange struct{ Request, Answer []byte }

// Report returns the report of an exchange, with IDs under the key in a file. It has no credentials if the answer has
// none, or if the answer is bound to a service account. An error is one line without any credential.
func (e Exchange) Report(keyFile string, now time.Time) (Report, error) {
	version, nodeWide, err := nodeWide(e.Request)
	if err != nil || !nodeWide {
		return Report{}, err
	}
	a, err := parse(e.Answer, version, now)
	if err != nil || len(a.accounts) == 0 {
		return Report{}, err
	}
	key, err := credential.LoadKey(keyFile)
	if err != nil {
		return Report{}, fmt.Errorf("%w; --state-dir must be the stateDir of pullgated, which creates the key when it first starts", err)
	}
	return a.report(key), nil
}
