/** Ledger signatures: EIP-712 structs (docs/protocol.md, "Ledger signatures"). */
import { concatBytes, fromHex, type Hex, keccak, toBytes, toHex, utf8ToBytes } from "./bytes.js";
import { InvalidError } from "./errors.js";
import { type Address, type Key, recover } from "./keys.js";

/** Type strings of all signed structs by name. */
export const TYPES = {
  NodeConsent: "NodeConsent(address provider,address node,uint256 nonce,uint256 deadline)",
  ProviderConsent:
    "ProviderConsent(address provider,address node,bytes32 specsHash,uint32 capacity,uint256 nonce,uint256 deadline)",
  Invite: "Invite(uint256 poolId,uint256 domainId,address node,uint256 nonce,uint256 expiry,string url)",
  Join: "Join(bytes32 inviteHash)",
  Leave: "Leave(uint256 poolId,address node,uint256 nonce,uint256 deadline)",
  Lease:
    "Lease(uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest," +
    "uint64 beaconBlock,bytes32 salt,uint32 groups,uint64 maxUnits,uint64 expiry)",
  Work: "Work(bytes32 leaseHash,bytes32 sha256Hash,uint64 units)",
  Dispute: "Dispute(bytes32 key,bytes32 evidenceHash,uint256 deadline)",
  SlotSalt:
    "SlotSalt(uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest)",
  ServedSlot: "ServedSlot(bytes32 key,bytes32 listHash)",
} as const;

export type TypeName = keyof typeof TYPES;
/** Members of a struct by name; integers may be decimal text. */
export type Message = Readonly<Record<string, string | number | bigint>>;

/** The contract and chain for which a signature is valid. */
export interface SigningDomain {
  chainId: number | bigint;
  verifyingContract: Address;
}

const DOMAIN = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";

/** Returns the EIP-712 struct hash, which `Join.inviteHash` and `Work.leaseHash` contain. */
export function structHash(type: TypeName, message: Message): Uint8Array {
  return hashed(TYPES[type], message);
}

/** Returns the hash that is signed for a contract and chain. */
export function signingHash(type: TypeName, message: Message, domain: SigningDomain): Uint8Array {
  const separator = hashed(DOMAIN, { name: "Muster", version: "2", ...domain });
  return keccak(concatBytes(Uint8Array.of(0x19, 0x01), separator, structHash(type, message)));
}

/** Signs a struct; returns 65 bytes r, s, v in hex. */
export function signTypedData(key: Key, type: TypeName, message: Message, domain: SigningDomain): Hex {
  return toHex(key.signHash(signingHash(type, message, domain)));
}

/** Returns the address that signed a struct. */
export function typedDataSigner(type: TypeName, message: Message, domain: SigningDomain, signature: Hex): Address {
  return recover(signingHash(type, message, domain), fromHex(signature));
}

function hashed(type: string, message: Message): Uint8Array {
  const members = type.slice(type.indexOf("(") + 1, -1).split(",");
  const words = members.map((member) => {
    const [kind, name] = member.split(" ") as [string, string];
    const value = message[name];
    if (value === undefined) {
      throw new InvalidError(`${name} is missing`, "invalid-input");
    }
    return word(kind, value);
  });
  return keccak(concatBytes(keccak(utf8ToBytes(type)), ...words));
}

function word(kind: string, value: string | number | bigint): Uint8Array {
  if (kind === "string") return keccak(utf8ToBytes(String(value)));
  if (kind === "address") return concatBytes(new Uint8Array(12), sized(String(value), 20));
  if (kind === "bytes32") return sized(String(value), 32);
  const number = BigInt(value);
  if (number < 0n || number >> BigInt(kind.slice(4)) !== 0n) {
    throw new InvalidError(`${number} is not a valid ${kind}`, "invalid-input");
  }
  return toBytes(number, 32);
}

function sized(text: string, length: number): Uint8Array {
  const bytes = fromHex(text);
  if (bytes.length !== length) {
    throw new InvalidError(`${text.slice(0, 80)} has not ${length} bytes`, "invalid-input");
  }
  return bytes;
}
