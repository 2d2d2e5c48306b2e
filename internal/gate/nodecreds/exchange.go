package nodecreds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	defaultLifetime = 24 * time.Hour // of an answer without one; plugins do not receive the default of the kubelet
	margin          = time.Hour      // added to the lifetime of an answer, for a pull that begins at its end
)

const group = "credentialprovider.kubelet.k8s.io/"

var (
	errRequest = errors.New("this version of pullgated does not support the kubelet's request")
	errAnswer  = errors.New("the provider's answer is not valid for a kubelet")
)

// A Report contains the IDs of the credentials that a credential provider gave to the node. An empty one is not sent.
type Report struct {
	KeyFingerprint string    // the fingerprint of the key for the IDs
	Expires        time.Time // when the kubelet no longer uses the answer
	Credentials    []ReportedCredential
}

// A ReportedCredential is the ID of a credential, with the patterns of its images.
type ReportedCredential struct {
	ID     credential.ID
	Images []string
}

// ReportOf returns the report of an exchange between a kubelet and a credential provider, with IDs under the key in a
// file; it is empty if the answer is bound to a service account. Any unknown part of the exchange is an error: it may
// restrict the answer to less than the node. An error is one line without any credential.
func ReportOf(request, answer []byte, keyFile string, now time.Time) (Report, error) {
	version, nodeWide, err := nodeWide(request)
	if err != nil || !nodeWide {
		return Report{}, err
	}
	expires, accounts, err := parse(answer, version, now)
	if err != nil || len(accounts) == 0 {
		return Report{}, err
	}
	key, err := credential.LoadKey(keyFile)
	if err != nil {
		return Report{}, fmt.Errorf(
			"%w; --state-dir must be the stateDir of pullgated, which creates the key when it first starts", err)
	}
	// Each ID once and sorted; an anonymous entry has none.
	images := map[credential.ID][]string{}
	for _, pattern := range slices.Sorted(maps.Keys(accounts)) {
		// As in the kubelet's call to the runtime: only these two fields are set.
		a := accounts[pattern]
		if id := key.ID(credential.New(credential.Login{Username: a.Username, Password: a.Password})); id != "" {
			images[id] = append(images[id], pattern)
		}
	}
	r := Report{KeyFingerprint: key.Fingerprint(), Expires: expires.UTC()}
	for _, id := range slices.Sorted(maps.Keys(images)) {
		r.Credentials = append(r.Credentials, ReportedCredential{id, images[id]})
	}
	return r, nil
}

type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// is reports whether a message is of a kind in a known version; all versions have the same fields.
func (h header) is(kind string) bool {
	version, ok := strings.CutPrefix(h.APIVersion, group)
	return ok && h.Kind == kind && slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version)
}

// nodeWide returns the version of a request, and whether its answer is for every pod and not bound to a service
// account. An unknown field, which may bind it to something else, is an error.
func nodeWide(request []byte) (apiVersion string, wide bool, err error) {
	var r struct {
		header
		Image                     string            `json:"image"`
		ServiceAccountToken       string            `json:"serviceAccountToken"`
		ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations"`
	}
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	if d.Decode(&r) != nil || !r.is("CredentialProviderRequest") {
		return "", false, errRequest
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", false, errRequest
	}
	return r.APIVersion, r.ServiceAccountToken == "" && len(r.ServiceAccountAnnotations) == 0, nil
}

type account struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// parse returns when the kubelet no longer uses an answer, and its accounts by image pattern. No error quotes it.
func parse(
	answer []byte, apiVersion string, now time.Time,
) (expires time.Time, accounts map[string]account, err error) {
	var a struct {
		header
		CacheDuration *string            `json:"cacheDuration"`
		Auth          map[string]account `json:"auth"`
	}
	// An error of encoding/json quotes the content, so it is not returned.
	if json.Unmarshal(answer, &a) != nil || !a.is("CredentialProviderResponse") || a.APIVersion != apiVersion {
		return expires, nil, errAnswer
	}
	if a.CacheDuration == nil {
		return now.Add(defaultLifetime), a.Auth, nil
	}
	d, err := time.ParseDuration(*a.CacheDuration)
	if err != nil {
		return expires, nil, errAnswer
	}
	return now.Add(max(d, 0)).Add(margin), a.Auth, nil
}
