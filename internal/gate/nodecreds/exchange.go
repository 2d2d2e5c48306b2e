package nodecreds

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	defaultLifetime = 24 * time.Hour // of an answer without one; plugins do not receive the default of the kubelet
	margin          = time.Hour      // added to the lifetime of an answer, for a pull that begins at its end
)

const group = "credentialprovider.kubelet.k8s.io/"

// maxToken bounds a service account token, in bytes. Those of an API server have about a kilobyte.
const maxToken = 64 << 10

var (
	errRequest = errors.New("this version of pullgated does not support the kubelet's request")
	errToken   = errors.New("the service account token in the kubelet's request has no valid claims")
	errAnswer  = errors.New("the provider's answer is not valid for a kubelet")
)

// A Report contains the IDs of the credentials that a credential provider gave to the node, or for one service account.
// An empty one is not sent.
type Report struct {
	Account        Account   // the zero value: every pod
	KeyFingerprint string    // the fingerprint of the key for the IDs
	Expires        time.Time // when the kubelet no longer uses the answer
	Credentials    []ReportedCredential
}

// A ReportedCredential is the ID of a credential, with the patterns of its images.
type ReportedCredential struct {
	ID     credential.ID
	Images []string
}

// An Account is a service account.
type Account struct{ Namespace, Name, UID string }

// ReportOf returns the report of an exchange between a kubelet and a credential provider, with IDs under the key in a
// file. It is empty if the answer is bound to something that is neither the node nor a service account. Any unknown
// part of the exchange is an error: it may restrict the answer to less. An error is one line without any credential.
func ReportOf(request, answer []byte, keyFile string, now time.Time) (Report, error) {
	version, account, bound, err := boundTo(request)
	if err != nil || bound && account == (Account{}) {
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
	r := Report{Account: account, KeyFingerprint: key.Fingerprint(), Expires: expires.UTC()}
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

// boundTo returns the version of a request, and whether its answer is bound to a service account, which is the zero
// value if the request does not name it. An unknown field, which may bind the answer to something else, is an error.
func boundTo(request []byte) (apiVersion string, account Account, bound bool, err error) {
	var r struct {
		header
		Image                     string            `json:"image"`
		ServiceAccountToken       string            `json:"serviceAccountToken"`
		ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations"`
	}
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	if d.Decode(&r) != nil || !r.is("CredentialProviderRequest") {
		return "", account, false, errRequest
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", account, false, errRequest
	}
	if r.ServiceAccountToken == "" {
		return r.APIVersion, account, len(r.ServiceAccountAnnotations) > 0, nil
	}
	account, err = accountOf(r.ServiceAccountToken)
	return r.APIVersion, account, true, err
}

// accountOf returns the service account of a token. The signature is not verified: the kubelet got the token from the
// API server for this request. The names are compared with the subject, so that a token of another issuer, which may
// have such claims too, is not taken for one.
func accountOf(token string) (a Account, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return a, errToken
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return a, errToken // that of the decoder quotes the token
	}
	var claims struct {
		Subject    string `json:"sub"`
		Kubernetes struct {
			Namespace      string `json:"namespace"`
			ServiceAccount struct {
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return a, errToken
	}
	a = Account{
		claims.Kubernetes.Namespace, claims.Kubernetes.ServiceAccount.Name, claims.Kubernetes.ServiceAccount.UID,
	}
	if _, ok := records.OfAccount(a.Namespace, a.Name, a.UID); !ok ||
		claims.Subject != "system:serviceaccount:"+a.Namespace+":"+a.Name {
		return Account{}, errToken
	}
	return a, nil
}

type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// parse returns when the kubelet no longer uses an answer, and its accounts by image pattern. No error quotes it.
func parse(
	answer []byte, apiVersion string, now time.Time,
) (expires time.Time, accounts map[string]login, err error) {
	var a struct {
		header
		CacheDuration *string          `json:"cacheDuration"`
		Auth          map[string]login `json:"auth"`
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
