// Package decisionlog implements the log of decisions: a file with one line of JSON for each decision. With it,
// operators can find out which pods used an image, which pods were refused it, and why. A decision never waits for the
// log.
//
// # Version 1
//
// A line is an object with these fields and no others. Within a version, fields may be added, but are never removed and
// never change their meaning. No field contains a credential.
//
//	v             number   always      1
//	time          string   always      when it was decided: RFC 3339 in UTC with nine digits of a second, so that lines sort
//	call          string   always      the CRI call: ImageStatus, PullImage, CreateContainer, StartContainer, RestorePod, RunPodSandbox
//	pod           object   if known    who asked
//	  uid         string   if known
//	  namespace   string   if known
//	  name        string   if known
//	  static      bool     if true     it is a static pod
//	image         string   always      the name as it was asked for, cut after 1024 bytes; "" if the call had none
//	imageID       string   if known    what the runtime calls the image
//	repository    string   if known    the repository that was judged
//	verdict       string   always      Allow or Reverify; a pull that did not succeed has Reverify
//	reason        string   if known    the rule that the verdict rests on; a pull that did not succeed has none
//	credentialID  string   if known    the credential that the verdict rests on
//	secret        object   if known    the Secret of the pod that holds this credential
//	  namespace   string   if known
//	  name        string   if known
//	pullPolicy    string   always      imagePullPolicy of the pod for the image; mixed or unknown
//	outcome       string   if a pull   what came of it: verified, denied, unavailable, error
//	took          number   always      seconds
//	shadow        bool     always      whether the verdict was not enforced (noPullImageSecretRecheck)
//	dropped       number   if any      how many decisions before this one are missing
//	container     string   if known    the name of the container, if the policies were asked
//	digest        string   if known    what is signed and leads to the image: the digest of a manifest or an index
//	policyHash    string   if asked    identifies the policies that were in use
//	policies      array    if asked    at most 100 findings, those that decided and failures first
//	  validator   string   always      which part of the admission chain found it
//	  policy      string   if known    the policy, for an image review the backend
//	  rule        string   if known    the path of the rule in the policy, for an image review the mounted image
//	  answer      string   always      Admit, Deny or Unverified
//	  reason      string   if denied   for example RESTRICTION_VIOLATED
//	  audit       bool     always      whether the finding is only reported
//	  failedOpen  bool     always      whether it admits because the validator could not get an answer
//	  signers     array    if any      who has signed what the rule requires: fingerprints of keys, or subjects and issuers of certificates
//	  auditAnnotations   object   if any   what an image review backend wants to have in logs: texts by key, at most 16 KiB in a line
//
// A call that policies deny has the verdict Reverify and the reason admission_denied. CreateContainer then has no line
// with Allow. If policies admit it, it has a line for each pod, container, image ID and content of the policies.
// RunPodSandbox has a line only if a finding is not Admit.
//
// # What is written when
//
// Record puts a decision into a queue in memory and returns; if the queue is full, the decision is dropped. Run writes
// the queued decisions to the file, one write for each line, without a sync: a crash of the node may lose the last
// lines. A line that cannot be written is dropped too. Dropped decisions are counted, and the next written line
// contains the number of missing ones.
//
// Only Run writes to the file, and only appends. After a rotation, Reopen makes Run continue in a new file of the same
// name; until then, lines go to the old file. If the file was deleted, the next line creates it again.
package decisionlog
